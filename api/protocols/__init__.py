"""One folder for each wire protocol: routes, requests, frames."""
