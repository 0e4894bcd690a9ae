"""What runs in a child process: one file for each kind of job."""
