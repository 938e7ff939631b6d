"""Policies of the papers that Isonomy is compared with; the registry names them beside its own."""
