"""Where the roles run. A placement is a file; the plan joins it with the other axes."""
