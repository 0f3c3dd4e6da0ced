"""Training: one fit, its steps, distillation, evaluation."""
