"""Weight synchronisation between a learner and its generators: updates, checksums and transports."""
