"""The Gymnasium of multimodal agent reinforcement learning."""
