"""The models there are, here and on the Hub: find, show, offer, fetch, list, remove."""
