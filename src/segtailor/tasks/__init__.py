"""What a network predicts, kind by kind: targets, losses, metrics and drawings."""
