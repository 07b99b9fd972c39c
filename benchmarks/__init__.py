"""One script per question; each prints a table and carries its measured numbers."""
