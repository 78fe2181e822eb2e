"""`turnsmith check`: find out before training whether an environment, its reward and a model fit each other."""
