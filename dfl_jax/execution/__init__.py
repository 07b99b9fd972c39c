"""Where a run is computed and how much at once: devices, memory, chunks."""
