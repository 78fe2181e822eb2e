"""`turnsmith check --plan`: what a run will need and how long it will take, before it is started."""
