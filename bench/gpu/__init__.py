"""Measurements on one GPU."""

#: NCCL over sockets between ranks that it takes for ranks of different hosts: it refuses to let
#: those of one host share a GPU. One socket for each channel, so that lanes are what adds flows.
SOCKETS = {
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "=lo",
    "NCCL_SOCKET_NTHREADS": "1",
    "NCCL_NSOCKS_PERTHREAD": "1",
    "NCCL_MAX_CTAS": "2",
}
