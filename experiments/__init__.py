"""Questions put to kdist, each with its command and its measured answer. Imports kdist."""
