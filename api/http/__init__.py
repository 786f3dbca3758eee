"""Reading requests and writing errors: parameters, bodies, the outermost middleware."""
