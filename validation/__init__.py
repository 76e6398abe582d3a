"""What the simulator is judged on: measured cells, published claims, and the pages made of them. Not shipped."""
