"""Small networks that learn the even digits and then the odd ones: figure 1 of "Soup to Go", and the
class-incremental version of it."""
