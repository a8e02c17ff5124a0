"""The program of the process that runs queries. It uses the standard library alone: envsdk is not imported there."""
