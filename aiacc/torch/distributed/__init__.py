"""The engines of aiacc under torch's own API for distributed training."""
