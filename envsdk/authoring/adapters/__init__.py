"""Adapters for existing tasks and tools. Users import them from `envsdk.adapters`."""
