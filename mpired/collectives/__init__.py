"""What goes where: the one fold and the calls that are made of it."""
