"""Renders Hadoop's and Isonomy's configuration files from templates, and checks them."""
