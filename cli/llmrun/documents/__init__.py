"""The versioned JSON contracts, as pure functions of events and reports."""
