"""What is known before anything is built: looked up in this process, on the disk, and in the shipped facts."""
