"""The interfaces of model providers, and logs of calls to them."""
