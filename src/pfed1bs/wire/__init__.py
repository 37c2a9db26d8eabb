"""What crosses the network: messages and the codecs of their fields."""
