"""One module per tab: layout and wiring, no arithmetic."""
