"""What runs in the user's own process while verl trains elsewhere: Ray, the watchdog, errors in words."""
