import sys

values = [float(value) for value in sys.argv[1:]]
middle = len(values) // 2
print(values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2)
