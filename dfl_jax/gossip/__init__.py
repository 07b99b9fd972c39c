"""What averaging with neighbours does: mixing weights and products, spectra, and the gain."""
