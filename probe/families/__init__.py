"""One small file per family of architectures, and the loaders that fetch their checkpoints."""
