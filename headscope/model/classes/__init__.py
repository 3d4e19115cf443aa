"""Which class is built, and with which configuration."""
