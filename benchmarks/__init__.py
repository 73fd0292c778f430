"""Speed and memory of kdist beside its peers, measured in one sitting on one machine."""
