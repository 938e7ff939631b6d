"""How good the estimates of starts are."""
