"""The suites, one module for each chapter; every module here is imported when cases are collected."""
