"""What serves: indexes and models, devices with their queues, the server's life."""
