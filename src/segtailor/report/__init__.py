"""What people look at: drawings, tables, pages. Reads plain data and run directories; imports no torch."""
