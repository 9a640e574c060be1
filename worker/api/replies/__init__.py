"""Bodies of the replies, as the OpenAPI document shows them. Fields that a body lacks are null or left out."""
