"""What people look at: results folders, tables, figures, traces."""
