"""Facts on what a checkpoint stores."""
