"""The OpenAPI document and the table that it is made from."""
