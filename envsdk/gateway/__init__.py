"""Agent programs as environments, and the server in front of them."""
