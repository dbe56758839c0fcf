"""Small networks that learn digits, the even ones and then the odd ones: figure 1 of "Soup to
Go"."""
