"""Services that get the numbers of a run, behind one protocol; `reporting.sinks` chooses them."""
