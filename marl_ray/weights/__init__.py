"""Weight versions, checksums and the transports between a learner and its generators."""
