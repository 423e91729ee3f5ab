"""Exports and token stores as a training loop reads them: rows, orders, mixtures, batches."""
