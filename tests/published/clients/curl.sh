# Create the same plant twice, and print both response bodies, one per line.
for _ in 1 2; do
    curl --silent --show-error "$1/plants" --header "Authorization: Bearer $2" --header 'Content-Type: application/json' \
        --data '{"id": 1, "name": "Fern"}' --write-out '\n'
done
