"""A real cluster for the tests: built from the Go module proxy, started on loopback, stopped for certain."""
