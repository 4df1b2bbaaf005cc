"""Results: the values of rows, and tables of results that print and export themselves."""
