"""An open-loop benchmark for any speech server; `vivace bench` is its command."""
