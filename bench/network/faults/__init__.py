"""Random faults on the bed, and whether jobs end as docs/failures.md says."""
