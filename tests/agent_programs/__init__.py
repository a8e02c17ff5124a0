"""Small agents in the frameworks that people use, unchanged, with the replies that a scripted model gives them."""
